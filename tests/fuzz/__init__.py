"""Random and coverage-guided inputs for everything that reads what others wrote; `python -m tests.fuzz`."""
