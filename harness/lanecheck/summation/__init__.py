"""The order in which a kernel adds: its tree, how it is recovered, and how it is written down."""
