"""Makes the shop on a server, with so many MiB of data: python make_shop.py URL [MIB]. URL names its database."""

from __future__ import annotations

import os
import sys

from shop.models import Base, Customer, Order, OrderLine, Payment, Picture, Product
from sqlalchemy import create_engine, insert
from sqlalchemy.orm import Session

CUSTOMERS, PRODUCTS, ORDERS = 500, 200, 1500
COUNTRIES = ("de", "fr", "at", "pl")
_MIB_OF_SHOP = 1


def main(url: str, mebibytes: int = 1) -> None:
    """Make the tables, fill them, and let the pictures, which no test changes, have the rest."""
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.execute(
            insert(Customer),
            [{"email": f"c{n}@example.org", "country": COUNTRIES[n % len(COUNTRIES)]} for n in range(1, CUSTOMERS + 1)],
        )
        session.execute(
            insert(Product),
            [
                {"sku": f"p{n}", "name": f"Product {n} " + "x" * 150, "price": n, "stock": 100, "facts": {"weight": n}}
                for n in range(1, PRODUCTS + 1)
            ],
        )
        session.execute(insert(Order), [{"customer_id": 1 + n % CUSTOMERS, "state": "paid"} for n in range(ORDERS)])
        session.execute(
            insert(OrderLine),
            [
                {"order_id": n, "product_id": 1 + (n * 7 + part) % PRODUCTS, "count": 1, "price": 10}
                for n in range(1, ORDERS + 1)
                for part in range(3)
            ],
        )
        session.execute(
            insert(Payment), [{"order_id": n, "amount": 30, "reference": f"first-{n}"} for n in range(1, ORDERS + 1)]
        )
    for _ in range(max(0, mebibytes - _MIB_OF_SHOP)):
        with Session(engine) as session, session.begin():
            # It is not made smaller by compression.
            session.execute(insert(Picture), [{"content": os.urandom(64 << 10)} for _ in range(16)])


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
