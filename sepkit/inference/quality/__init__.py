"""Quality of a separation, estimated without references."""
