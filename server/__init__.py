"""The server: model, engine, admission, API and policy; runs without the console."""
