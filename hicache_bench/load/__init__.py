"""The hot path: transports that keep a raw log, and the driver that keeps the schedule."""
