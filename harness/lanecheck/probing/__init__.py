"""What the probes read: names of operand elements, and sentences on how they are misread."""
