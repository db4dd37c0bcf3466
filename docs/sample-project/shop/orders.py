"""What the shop does. Each function is one transaction of its caller."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from shop.models import Customer, Order, OrderLine, Payment, Product


class NotInStockError(Exception):
    """There are fewer of the product than are wanted."""


def place(session: Session, customer: int, wanted: Mapping[str, int]) -> Order:
    """Order so many of each product (by SKU), which leave the stock. NotInStockError if there are not so many."""
    order = Order(customer_id=customer)
    session.add(order)
    for sku, count in sorted(wanted.items()):
        product = session.scalars(select(Product).where(Product.sku == sku).with_for_update()).one()
        if product.stock < count:
            raise NotInStockError(f"{sku}: {product.stock} of {count}")
        product.stock -= count
        order.lines.append(OrderLine(product=product, count=count, price=product.price))
    session.flush()
    return order


def total(order: Order) -> Decimal:
    """Return what the order costs."""
    return sum((line.price * line.count for line in order.lines), Decimal(0))


def pay(session: Session, order: Order, amount: Decimal, reference: str) -> None:
    """Note a payment; the order is paid when enough has come."""
    order.payments.append(Payment(amount=amount, reference=reference))
    if sum((payment.amount for payment in order.payments), Decimal(0)) >= total(order):
        order.state = "paid"
    session.flush()


def cancel(session: Session, order: Order) -> None:
    """Give what was ordered back to the stock. A paid order stays as it is."""
    if order.state != "placed":
        raise ValueError(f"order {order.id} is {order.state}")
    for line in order.lines:
        line.product.stock += line.count
    order.state = "cancelled"
    session.flush()


def revenue(session: Session) -> dict[str, Decimal]:
    """Return what came from each country."""
    rows = session.execute(
        select(Customer.country, func.sum(Payment.amount))
        .join(Order, Order.customer_id == Customer.id)
        .join(Payment, Payment.order_id == Order.id)
        .group_by(Customer.country)
    )
    return {row.country: row[1] for row in rows}
