"""Money as whole cents."""


def parse(text: str) -> int:
    """Cents of a price, such as 1999 of "19.99"."""
    return int(float(text.strip()) * 100)


def show(cents: int) -> str:
    """A price as people write it."""
    return f"{cents // 100}.{cents % 100:02d}"
