"""How slices live together on a card: what a card is, what limits hold on it, whether it is well. Pure rules."""
