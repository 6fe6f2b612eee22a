"""VILA-U (text to video, LLaMA with residual visual codes): loading, generation with replay, memory plan."""
