"""Reports: documents of sections, written as HTML, Markdown, console text, JSON and CSV."""
