"""``whet bench``: the command, its output, two servers, the search for the highest load."""
