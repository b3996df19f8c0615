"""OpenTelemetry traces: pip install "remuda[tracing]". One trace covers everything a message causes."""

from collections.abc import Sequence
from tempfile import TemporaryDirectory

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from remuda import Bus
from remuda.bus.observing.tracing import Tracing


class Printer(SpanExporter):
    """Stands in for the exporter of your choice."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            print(f"trace {span.context.trace_id:032x}  {span.name}")
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(Printer()))
data = TemporaryDirectory()
bus = Bus(data.name, middleware=[Tracing(provider)])


@bus.subscribe("order.placed")
def ship(number: int) -> None:
    bus.publish("order.shipped", number)


@bus.subscribe("order.shipped")
def tell(number: int) -> None:
    print(f"order {number} is on its way")


with data, bus:
    bus.publish("order.placed", 1)
    bus.run(until_idle=True)
