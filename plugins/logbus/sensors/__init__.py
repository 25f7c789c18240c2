"""When may we start?"""
