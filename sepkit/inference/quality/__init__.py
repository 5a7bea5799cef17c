"""What a separation tells about itself, without references."""
