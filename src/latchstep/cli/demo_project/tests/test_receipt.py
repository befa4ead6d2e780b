import time
import unittest

from shop.money import parse, show
from shop.receipt import discount, total


def setUpModule():
    print("reading the price list ...", flush=True)
    time.sleep(0.3)


class Money(unittest.TestCase):
    def test_prices_are_read_to_the_cent(self):
        for text, cents in [("19.99", 1999), ("4.35", 435), (" 1.10 ", 110), ("0.07", 7)]:
            self.assertEqual(parse(text), cents)

    def test_prices_are_shown_with_two_digits(self):
        self.assertEqual(show(705), "7.05")


class Receipt(unittest.TestCase):
    def test_the_sum_of_two_prices(self):
        self.assertEqual(total(["19.99", "4.35"]), "24.34")

    def test_a_discount_is_rounded_to_the_nearest_cent(self):
        self.assertEqual(discount(1999, 15), 300)
        self.assertEqual(total(["19.99"], percent=15), "16.99")


if __name__ == "__main__":
    unittest.main()
