"""Measure separators: metrics, their statistics, and evaluation over manifests."""
