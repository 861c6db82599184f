"""What runs inside the peers' own environments: one small server each, all before the same emulated card."""
