"""The frozen records that the stages hand to one another."""
