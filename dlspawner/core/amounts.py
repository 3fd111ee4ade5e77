"""Amounts of GPUs: thousandths inside, so that shares of a GPU fit; whole GPUs in files, forms and sentences."""

from __future__ import annotations

GPU = 1000  # milli-GPUs of a whole one


def shown(milli: int) -> str:
    """How people write so many milli-GPUs: ``2``, ``0.5``."""
    return f"{milli / GPU:.3f}".rstrip("0").rstrip(".")


def counted(milli: int, what: str = "GPU") -> str:
    """The amount with its word: ``1 GPU``, ``3 GPUs``, ``0.5 GPUs``."""
    return f"{shown(milli)} {what}{'' if milli == GPU else 's'}"


def free_of_them(milli: int) -> str:
    """What has to be free of an amount that was named: ``1 of them is free``, ``3 of them are free``."""
    return f"{shown(milli)} of them {'is' if milli == GPU else 'are'} free"
