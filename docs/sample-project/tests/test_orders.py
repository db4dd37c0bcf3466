"""The shop on the data that production has."""

from __future__ import annotations

import os
from decimal import Decimal

import pytest
from shop import orders
from shop.models import Customer, Order, Payment, Product
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

ROUNDS = range(int(os.environ.get("SHOP_ROUNDS", "25")))
"""Each of the eight tests runs so often: two hundred in all."""


def stock(session: Session, sku: str) -> int:
    return session.scalars(select(Product.stock).where(Product.sku == sku)).one()


@pytest.mark.parametrize("number", ROUNDS)
def test_an_order_takes_what_is_ordered_from_the_stock(session: Session, number: int) -> None:
    # Every test orders of the same products: with what another one left, the numbers would be wrong.
    orders.place(session, 1 + number, {"p1": 60, "p2": 1})
    session.commit()
    assert (stock(session, "p1"), stock(session, "p2")) == (40, 99)


@pytest.mark.parametrize("number", ROUNDS)
def test_more_than_there_is_cannot_be_ordered(session: Session, number: int) -> None:
    with pytest.raises(orders.NotInStockError):
        orders.place(session, 1 + number, {"p3": 101})
    session.rollback()
    assert stock(session, "p3") == 100


@pytest.mark.parametrize("number", ROUNDS)
def test_an_order_is_paid_when_enough_has_come(session: Session, number: int) -> None:
    order = orders.place(session, 1 + number, {"p10": 2})
    orders.pay(session, order, Decimal(5), "a part")
    assert order.state == "placed"
    orders.pay(session, order, Decimal(15), "the rest")
    session.commit()
    assert session.get_one(Order, order.id).state == "paid"


@pytest.mark.parametrize("number", ROUNDS)
def test_a_cancelled_order_gives_back_what_it_took(session: Session, number: int) -> None:
    order = orders.place(session, 1 + number, {"p5": 100, "p6": 1})
    session.commit()
    orders.cancel(session, order)
    session.commit()
    assert (stock(session, "p5"), order.state) == (100, "cancelled")


@pytest.mark.parametrize("number", ROUNDS)
def test_a_paid_order_is_not_cancelled(session: Session, number: int) -> None:
    order = session.scalars(select(Order).where(Order.state == "paid").offset(number).limit(1)).one()
    with pytest.raises(ValueError, match="is paid"):
        orders.cancel(session, order)


@pytest.mark.parametrize("number", ROUNDS)
def test_a_reference_of_a_payment_comes_once(session: Session, number: int) -> None:
    order = orders.place(session, 1 + number, {"p7": 1})
    with pytest.raises(IntegrityError):
        orders.pay(session, order, Decimal(7), f"first-{1 + number}")


@pytest.mark.parametrize("number", ROUNDS)
def test_a_new_customer_has_the_next_number(session: Session, number: int) -> None:
    # Counters of AUTO_INCREMENT are as they were, too.
    session.add(Customer(email=f"new{number}@example.org", country="it"))
    session.commit()
    assert session.scalars(select(func.max(Customer.id))).one() == 501


@pytest.mark.parametrize("number", ROUNDS)
def test_revenue_is_what_came(session: Session, number: int) -> None:
    before = orders.revenue(session)
    assert sum(before.values()) == 30 * session.scalars(select(func.count(Payment.id))).one() == 45_000
    order = orders.place(session, 1 + number, {"p9": 1})
    orders.pay(session, order, Decimal(9), "it")
    session.commit()
    assert sum(orders.revenue(session).values()) == 45_009
