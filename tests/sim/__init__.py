"""The core of both ends under a virtual clock and a seeded bad network."""
