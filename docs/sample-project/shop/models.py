"""The tables of the shop."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Index, LargeBinary, Numeric, String, UniqueConstraint, func
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class Base(DeclarativeBase):
    """What every table has in common."""


class Customer(Base):
    """Who orders."""

    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(String(190), unique=True)
    country: Mapped[str] = mapped_column(String(2), index=True)
    since: Mapped[datetime] = mapped_column(server_default=func.now())
    orders: Mapped[list[Order]] = relationship(back_populates="customer")


class Product(Base):
    """What can be ordered, and how many of it there are."""

    __tablename__ = "products"
    __table_args__ = (CheckConstraint("stock >= 0", name="stock_is_there"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    sku: Mapped[str] = mapped_column(String(40), unique=True)
    name: Mapped[str] = mapped_column(String(200))
    price: Mapped[Decimal] = mapped_column(Numeric(10, 2))
    stock: Mapped[int]
    facts: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)


class Order(Base):
    """What a customer wants at once."""

    __tablename__ = "orders"
    __table_args__ = (Index("by_customer", "customer_id", "placed"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int] = mapped_column(ForeignKey("customers.id"))
    state: Mapped[str] = mapped_column(String(12), default="placed")
    placed: Mapped[datetime] = mapped_column(server_default=func.now())
    customer: Mapped[Customer] = relationship(back_populates="orders")
    lines: Mapped[list[OrderLine]] = relationship(back_populates="order")
    payments: Mapped[list[Payment]] = relationship(back_populates="order")


class OrderLine(Base):
    """So many of a product, at the price of then."""

    __tablename__ = "order_lines"
    __table_args__ = (UniqueConstraint("order_id", "product_id", name="once"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"))
    product_id: Mapped[int] = mapped_column(ForeignKey("products.id"))
    count: Mapped[int]
    price: Mapped[Decimal] = mapped_column(Numeric(10, 2))
    order: Mapped[Order] = relationship(back_populates="lines")
    product: Mapped[Product] = relationship()


class Payment(Base):
    """Money that came for an order."""

    __tablename__ = "payments"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"))
    amount: Mapped[Decimal] = mapped_column(Numeric(10, 2))
    reference: Mapped[str] = mapped_column(String(60), unique=True)
    order: Mapped[Order] = relationship(back_populates="payments")


class Picture(Base):
    """A picture of something that is sold."""

    __tablename__ = "pictures"
    id: Mapped[int] = mapped_column(primary_key=True)
    content: Mapped[bytes] = mapped_column(LargeBinary(1 << 20))
