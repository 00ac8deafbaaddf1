"""The library all programs share: it imports no program and prints nothing (tests/test_layers.py)."""
