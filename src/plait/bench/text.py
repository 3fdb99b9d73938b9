"""Text classification tasks of the suites text8 and text12: how classes are called in words, and in which sentences.

Names are those of the data where they say what they mean; labels that are abbreviations or identifiers are spelt out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TEXT8 = (
    "trec6", "sst2", "ag_news", "banking77", "clinc_domain10", "stackoverflow20", "snips7", "tweet_emotion",
)  # fmt: skip
TEXT12 = (*TEXT8, "subj", "tweet_hate", "tweet_offensive", "clinc150")

ABOUT = ("{}", "This text is about {}.", "A message about {}.")
ASKED = ("{}", "A question about {}.", "The customer asks about {}.")

# Classes in the order of their labels. Those of banking77 are the data's own, with blanks for underscores.
_BANKING = """
card_arrival; card_linking; exchange_rate; card_payment_wrong_exchange_rate; extra_charge_on_statement;
pending_cash_withdrawal; fiat_currency_support; card_delivery_estimate; automatic_top_up; card_not_working;
exchange_via_app; lost_or_stolen_card; age_limit; pin_blocked; contactless_not_working;
top_up_by_bank_transfer_charge; pending_top_up; cancel_transfer; top_up_limits; wrong_amount_of_cash_received;
card_payment_fee_charged; transfer_not_received_by_recipient; supported_cards_and_currencies; getting_virtual_card;
card_acceptance; top_up_reverted; balance_not_updated_after_cheque_or_cash_deposit; card_payment_not_recognised;
edit_personal_details; why_verify_identity; unable_to_verify_identity; get_physical_card; visa_or_mastercard;
topping_up_by_card; disposable_card_limits; compromised_card; atm_support; direct_debit_payment_not_recognised;
passcode_forgotten; declined_cash_withdrawal; pending_card_payment; lost_or_stolen_phone; request_refund;
declined_transfer; refund_not_showing_up; declined_card_payment; pending_transfer; terminate_account; card_swallowed;
transaction_charged_twice; verify_source_of_funds; transfer_timing; reverted_card_payment; change_pin;
beneficiary_not_allowed; transfer_fee_charged; receiving_money; failed_transfer; transfer_into_account;
verify_top_up; getting_spare_card; top_up_by_cash_or_cheque; order_physical_card; virtual_card_not_working;
wrong_exchange_rate_for_cash_withdrawal; get_disposable_virtual_card; top_up_failed;
balance_not_updated_after_bank_transfer; cash_withdrawal_not_recognised; exchange_charge; top_up_by_card_charge;
activate_my_card; cash_withdrawal_charge; card_about_to_expire; apple_pay_or_google_pay; verify_my_identity;
country_support
"""
_CLINC = """
accept reservations; blocked account; alarm; application status; annual percentage rate of a card; are you a robot;
account balance; bill amount; when a bill is due; book a flight; book a hotel; calculator; calendar; calendar update;
calories; cancel; cancel a reservation; car rental; declined card; carry-on luggage; change your accent;
change the assistant's name; change language; change speaking speed; change my name; change volume;
confirm a reservation; cooking time; credit limit; raise the credit limit; credit score; current location;
damaged card; date; definition of a word; direct deposit; directions; distance; do you have pets; exchange rate;
expiration date of a card; find my phone; flight status; flip a coin; how long food lasts; freeze an account;
fun fact; fuel level; type of fuel; goodbye; greeting; how busy a restaurant is; how old are you;
improve my credit score; income; ingredient substitution; list of ingredients; insurance; change insurance;
interest rate; international fees; international visa; jump start a car; last car maintenance; lost luggage;
make a call; maybe; meal suggestion; meaning of life; convert measurements; is a meeting scheduled; minimum payment;
miles per gallon; apply for a new card; next holiday; next song; no; nutrition information; how to change oil;
when to change oil; order something; order checks; order status; pay a bill; payday; change a PIN; play music;
electric plug type; paid time off balance; request paid time off; status of a request for paid time off;
paid time off used; recipe; redeem rewards; reminders; set a reminder; repeat that;
how long a replacement card takes; report fraud; report a lost card; reset settings; restaurant reservation;
restaurant reviews; restaurant suggestion; rewards balance; roll dice; roll over a 401k; routing number;
schedule car maintenance; schedule a meeting; share my location; shopping list; update the shopping list; smart home;
spelling; spending history; sync a device; taxes; tell a joke; send a text message; thank you; time; timer;
time zone; tire change; tire pressure; to-do list; update the to-do list; traffic; transactions; transfer money;
translate; travel alert; tell the bank about travel; travel suggestion; call an Uber; update a playlist;
what is my name; vaccines; W-2 tax form; weather; what are your hobbies; what can I ask you; what is your name;
what song is this; where are you from; whisper mode; who do you work for; who made you; yes
"""
_STACK = """
Ajax; Apache; Bash; Cocoa; Drupal; Excel; Haskell; Hibernate; LINQ; Magento; MATLAB; Oracle; macOS; Qt; Scala;
SharePoint; Spring; Subversion; Visual Studio; WordPress
"""


def _split(names: str) -> list[str]:
    return [name.strip().replace("_", " ") for name in names.replace("\n", " ").split(";")]


TASKS: Mapping[str, Mapping[str, Any]] = {
    "trec6": {
        "classes": [
            "a description or a reason",
            "an entity, a thing",
            "an abbreviation",
            "a person or a group of people",
            "a location, a place",
            "a number, an amount or a date",
        ],
        "templates": ["{}", "The answer to this question is {}.", "A question about {}."],
    },
    "sst2": {
        "classes": ["negative, bad", "positive, good"],
        "templates": ["A {} film review.", "The film was {}.", "{}"],
    },
    "ag_news": {
        "classes": ["world politics", "sports", "business", "science and technology"],
        "templates": ["{}", "News about {}.", "An article about {}."],
    },
    "banking77": {"classes": _split(_BANKING), "templates": list(ASKED)},
    "clinc_domain10": {
        "classes": [
            "cars and commuting",
            "banking",
            "credit cards",
            "home and lists",
            "kitchen, cooking and dining",
            "settings of the voice assistant",
            "small talk",
            "travel",
            "time, dates, alarms and other utilities",
            "work",
        ],
        "templates": ["{}", "A request about {}.", "Talking about {}."],
    },
    "stackoverflow20": {
        "classes": _split(_STACK),
        "templates": ["{}", "A programming question about {}.", "How to do this in {}?"],
    },
    "snips7": {
        "classes": [
            "add a song to a playlist",
            "book a restaurant",
            "get the weather",
            "play music",
            "rate a book",
            "search for a creative work",
            "search for films on screen nearby",
        ],
        "templates": ["{}", "A request to {}."],
    },
    "tweet_emotion": {
        "classes": ["anger", "joy", "optimism", "sadness"],
        "templates": ["{}", "I feel {}.", "A tweet full of {}."],
    },
    "subj": {
        "classes": ["a subjective opinion", "an objective description of a plot"],
        "templates": ["{}", "This sentence is {}."],
    },
    "tweet_hate": {
        "classes": ["harmless", "hateful, against women or immigrants"],
        "templates": ["{}", "This tweet is {}."],
    },
    "tweet_offensive": {
        "classes": ["polite", "offensive, rude"],
        "templates": ["{}", "This tweet is {}."],
    },
    "clinc150": {"classes": _split(_CLINC), "templates": list(ABOUT)},
}


def row(name: str) -> dict[str, Any]:
    """What tasks.yaml would say of a task, but for its splits."""
    words = TASKS[name]
    return {
        "kind": "text-classification",
        "data": f"$PLAIT_DATA/{name}.parquet",
        "classes": words["classes"],
        "head": {"kind": "zero-shot", "templates": words["templates"]},
    }


def lay_base(folder: Path, longest: int) -> None:
    """Write the packaged sentence encoder as a checkpoint folder. longest: tokens that it reads of a text."""
    from plait.demo.minilm import copy_base

    copy_base(folder)
    stated = json.dumps({"max_seq_length": longest, "do_lower_case": False}, indent=1)
    (folder / "sentence_bert_config.json").write_text(stated + "\n", encoding="utf-8")
