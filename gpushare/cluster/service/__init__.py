"""The service that runs jobs: its records, what people may ask of it, and its rounds. No HTTP in here."""
