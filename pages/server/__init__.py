"""What the server does for all visitors: guards and bounds what they send, keeps results, gives memory back."""
