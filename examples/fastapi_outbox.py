"""FastAPI and SQLAlchemy: an order and its message are committed together, or neither is.

With PostgreSQL, only the two URLs change. In production, run `uvicorn app:app` and, beside it, `remuda run app:bus`.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import httpx
from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from remuda import Bus
from remuda.outbox import Outbox

folder = tempfile.TemporaryDirectory()
database = Path(folder.name, "shop.db")

app = FastAPI()
engine = create_async_engine(f"sqlite+aiosqlite:///{database}")
sessions = async_sessionmaker(engine)
bus = Bus(Path(folder.name, "messages"))
outbox = Outbox(bus, f"sqlite:///{database}")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)


async def session() -> AsyncIterator[AsyncSession]:
    async with sessions() as made, bus.transaction(made):
        yield made


@app.post("/orders/{number}", status_code=201)
async def place(number: int, db: Annotated[AsyncSession, Depends(session)]) -> None:
    db.add(Order(number=number))
    await db.flush()
    await bus.publish_async("order.placed", number, transaction=db)
    if number == 13:
        raise HTTPException(409, "nobody wants this one")  # rolls back both the row and the message


@bus.subscribe("order.placed")
def ship(number: int) -> None:
    print(f"order {number} shipped")


async def main() -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    outbox.create_tables()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        for number in (1, 13):
            answer = await client.post(f"/orders/{number}")
            print(f"POST /orders/{number}: {answer.status_code}")
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
    bus.run(until_idle=True)
    bus.close()
    folder.cleanup()
