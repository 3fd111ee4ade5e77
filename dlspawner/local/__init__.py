"""The whole product on one machine; see `__main__`."""
