"""What each replica reads: shards and slices of the user's data."""
