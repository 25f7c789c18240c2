"""Do one thing once: freeze, load or audit windows."""
