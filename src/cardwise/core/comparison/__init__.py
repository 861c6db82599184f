"""Two measurements side by side: how sure a change is, and what it comes to."""
