"""Stage II: policy-evolution functions, how they are fitted, and the methods that use them (paper, section 4.2)."""
