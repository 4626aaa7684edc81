"""llm-compressor as the writer of a recipe: a program in an environment of its own."""
