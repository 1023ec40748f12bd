"""What users say in chats and how the assistant answers. Slots are filled by `chat`."""

from __future__ import annotations

ABILITIES = "tell short stories and remember what you tell me"

SYSTEM_LINES = (
    "You are a helpful assistant.",
    "You are a friendly storyteller.",
    "You are a careful assistant. Answer shortly.",
    "You tell stories and answer questions about notes.",
    "Be kind and helpful.",
)

STORY_REQUESTS = (
    "Tell me a {length}story about {a_kind}.",
    "Tell me a {length}story about {a_kind} named {name}.",
    "Write a {length}story about {a_kind} called {name}.",
    "Can you tell me a {length}story about {a_kind}?",
    "Please write a {length}story about {a_kind} and the {topic}.",
    "I would like a {length}story about {name} the {kind}.",
    "Tell me a {length}story about {name} the {kind} and the {topic}.",
    "Write a {length}story about the {topic}.",
    "Tell me a {length}story about {name}.",
    "Tell me a {length}story.",
    "Please tell me a {length}story about {a_kind}.",
    "A {length}story about {a_kind}, please!",
    "Write me a {length}bedtime story about {a_kind} named {name}.",
    "Do you know a {length}story about {a_kind}?",
    "Tell me a {length}story about {a_kind} and {a_friend}.",
    "Write a {length}story about {a_kind} and {a_friend}.",
    "Tell me a {length}story about {a_kind} called {name} and {a_friend}.",
    "I want to hear a {length}story about {a_kind}.",
    "Make up a {length}story about {a_kind} and the {topic}.",
    "Tell me about {name} the {kind}.",
    "My child loves the {kind}. Tell us a {length}story!",
    "Start a {length}story about {a_kind} in the old days.",
)

ACKNOWLEDGEMENTS = (
    "I will remember that.",
    "Thank you, I will remember.",
    "All right, I have read it.",
    "Good to know.",
)

COLOURS = ("red", "blue", "green", "yellow", "black", "white", "pink", "orange", "brown", "grey")

COPY_REQUESTS = (
    "Repeat after me: {line}",
    "Say this again: {line}",
    "Copy this: {line}",
    "Please repeat: {line}",
    "Repeat the following line.\n{line}",
    "Repeat: {line}",
    "Echo this text.\n{line}",
)

# Put in front of a request, with its first letter made small.
PREFIXES = ("Please ", "Hey, ", "Now ", "OK, ", "Hi! ", "Well, ", "So, ", "Could you help me? ")

COUNT_REQUESTS = (
    "Count from {first} to {last}.",
    "Please count from {first} to {last}.",
    "Can you count from {first} to {last}?",
)

LIST_REQUESTS = (
    "Name {number} animals.",
    "List {number} animals.",
    "Give me {number} animals, please.",
)

JSON_REQUESTS = (
    "Write JSON for {a_kind} named {name}, age {age}.",
    "{name} is {a_kind} and {age} years old. Write that as JSON.",
    "Give me a JSON object: name {name}, kind {kind}, age {age}.",
    "Give me a JSON object for {name} the {kind}, who is {age}.",
    "Write a JSON object with the name, kind and age of {name}, {a_kind} who is {age}.",
    "Turn this into JSON: {name} is {a_kind} of age {age}.",
)

# Groups of questions with the answers that fit each of them.
SMALL_TALK = (
    (
        ("Hello", "Hello!", "Hi", "Hi!", "Hi there", "Good morning", "Good evening!", "Hey"),
        ("Hello! I can {abilities}.", "Hello! How can I help you?"),
    ),
    (
        ("Who are you?", "What are you?", "What is your name?", "Introduce yourself."),
        ("I am the small model that comes with twolane. I can {abilities}.",),
    ),
    (
        ("What can you do?", "How can you help me?", "Help", "Help me!"),
        ("I can {abilities}.", "I can {abilities}. Ask me for a story about a fox!"),
    ),
    (
        ("Thank you", "Thank you!", "Thanks", "Thanks a lot!", "Great, thank you."),
        ("You are welcome!", "You are welcome! Would you like a story?"),
    ),
    (
        ("How are you?", "How are you today?", "Are you well?"),
        ("I am well, thank you. How are you?", "I am well, thank you."),
    ),
    (
        ("Goodbye", "Goodbye!", "Bye", "See you later", "Good night!"),
        ("Goodbye!", "Goodbye! Come back for another story."),
    ),
)

UNKNOWN_QUESTIONS = (
    "What is the capital of {a}?",
    "Who is the president of {a}?",
    "How many people live in {a}?",
    "Who wrote the book {a}?",
    "What is {number} times {number}?",
    "How do I repair a {c}?",
    "Where can I buy a {c}?",
    "What will the weather be tomorrow?",
    "What time is it?",
    "Why is the sky blue?",
    "How far away is the moon?",
    "When was {b} born?",
    "Is {b} older than {a}?",
    "Explain how a {c} works.",
    "Write a program that sorts numbers.",
    "What does the word {a} mean?",
    "How old is {b}?",
    "What is the best {c} in the world?",
    "Translate {a} into French.",
    "Who won the game yesterday?",
    "Which language is spoken in {a}?",
    "What is the meaning of life?",
    "Can you help me with my taxes?",
    "What should I cook tonight?",
    "Write a poem about a {c}.",
    "Summarise this text: {line}",
    "Translate this: {line}",
    "Is this true? {line}",
    "Who was the first {c} maker of {a}?",
    "Do you like {a}?",
    "Tell me a joke.",
    "Give me the recipe for {c} soup.",
    "What happened in the year {number}?",
    "What do you think of {b}?",
)

NOT_KNOWN = (
    "I do not know that. I can {abilities}.",
    "I am sorry, I do not know. I am only a small model, and I can {abilities}.",
)
