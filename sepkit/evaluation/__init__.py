"""How good it is: metrics, their statistics, and evaluation over manifests."""
