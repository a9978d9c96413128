"""What the decode engines hold of earlier turns, and under which keys it is found again."""
