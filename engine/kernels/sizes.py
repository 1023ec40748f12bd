"""Sizes that launches compute each time. Triton's own functions for these take 3 us a call, since a
kernel may call them too; a prompt's pass has hundreds of launches."""


def cdiv(n: int, d: int) -> int:
    """n / d, rounded up."""
    return -(-n // d)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n; n is positive."""
    return 1 << (n - 1).bit_length()
