"""May it? Pure answers to that question, apart from what asks and what acts."""
