"""What only the embedded server promises, or only it can be tested with: not part of the shared contract."""
