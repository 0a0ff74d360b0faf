"""hicache-bench: load generator and benchmark harness for SGLang with HiCache."""

__version__ = "0.1.0"
