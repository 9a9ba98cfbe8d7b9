"""Target endpoint: an OpenAI-compatible server gets the recorded requests on the recorded schedule."""
