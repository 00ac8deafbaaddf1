"""The library all programs share: it imports no program and prints nothing (tests/lab/test_layers.py)."""
