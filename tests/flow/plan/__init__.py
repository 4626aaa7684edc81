"""Tests of whet plan."""
