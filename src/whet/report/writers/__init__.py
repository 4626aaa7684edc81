"""HTML, Markdown, console and JSON: each walks the same document."""
