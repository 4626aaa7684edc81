"""What README's performance tables are made by, one script a table."""
