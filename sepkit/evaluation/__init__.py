"""What measures: metrics, their statistics, and evaluation over manifests."""
