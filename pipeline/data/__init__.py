"""The study's data: where they come from, how `prepare` checks and splits them, and how stages read them."""
