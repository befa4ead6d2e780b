"""What a customer pays."""

from shop.money import parse, show


def discount(cents: int, percent: float) -> int:
    """The part of a price that a discount takes off, to the nearest cent."""
    return int(cents * percent / 100)


def total(prices: list[str], percent: float = 0) -> str:
    """The sum of the prices, less the discount."""
    cents = sum(parse(price) for price in prices)
    return show(cents - discount(cents, percent))
