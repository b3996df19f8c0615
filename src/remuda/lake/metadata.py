"""A table's columns as the metadata of Delta and of Iceberg describe them."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from remuda.log.sealed.table_schemas import inner_id

_DELTA: Final = {
    pa.int8(): "byte",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.binary(): "binary",
}
_ICEBERG: Final = {
    pa.int8(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.binary(): "binary",
}


def delta_schema(schema: pa.Schema) -> dict[str, Any]:
    fields = [
        {"name": field.name, "type": _delta_type(field.type), "nullable": True, "metadata": {}} for field in schema
    ]
    return {"type": "struct", "fields": fields}


def _delta_type(kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind):
        return "timestamp"
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": _delta_type(kind.key_type),
            "valueType": _delta_type(kind.item_type),
            "valueContainsNull": True,
        }
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _delta_type(kind.value_type), "containsNull": True}
    return _DELTA[kind]


def iceberg_schema(schema: pa.Schema) -> dict[str, Any]:
    fields = [
        {"id": number, "name": field.name, "required": False, "type": _iceberg_type(field.type, number)}
        for number, field in enumerate(schema, 1)
    ]
    return {"type": "struct", "schema-id": 0, "fields": fields}


def _iceberg_type(kind: pa.DataType, number: int) -> Any:
    if pa.types.is_timestamp(kind):
        return "timestamptz"
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "key-id": inner_id(number),
            "key": _ICEBERG[kind.key_type],
            "value-id": inner_id(number, 1),
            "value": _ICEBERG[kind.item_type],
            "value-required": False,
        }
    if pa.types.is_list(kind):
        return {
            "type": "list",
            "element-id": inner_id(number),
            "element": _ICEBERG[kind.value_type],
            "element-required": False,
        }
    return _ICEBERG[kind]


def last_id(schema: pa.Schema) -> int:
    return max(
        (
            inner_id(number, 1) if pa.types.is_map(field.type) else inner_id(number)
            for number, field in enumerate(schema, 1)
            if pa.types.is_nested(field.type)
        ),
        default=len(schema),
    )


def name_mapping(schema: pa.Schema) -> list[dict[str, Any]]:
    """The names of the columns, by which files are read that were sealed before fields had ids."""
    return [
        {"field-id": number, "names": [field.name], **_inner(field, number)} for number, field in enumerate(schema, 1)
    ]


def _inner(field: pa.Field, number: int) -> dict[str, Any]:
    names = ["key", "value"] if pa.types.is_map(field.type) else ["element"] if pa.types.is_list(field.type) else []
    inner = [{"field-id": inner_id(number, at), "names": [name]} for at, name in enumerate(names)]
    return {"fields": inner} if inner else {}
