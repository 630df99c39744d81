"""What is fuzzed: each module has a `fuzz(data)` that returns, or raises where something is wrong."""
