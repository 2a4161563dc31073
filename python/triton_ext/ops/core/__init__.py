"""What all of ``ops`` shares: parameters, epilogues, launcher, dispatch cache and replays."""
