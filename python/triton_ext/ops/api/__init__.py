"""What people call: signatures, argument checks, ``support`` and the registration with torch."""
