"""Sentence frames, written by hand in every language.

A slot is `{name}` or `{name:style}`, with a digit after the name where a
frame has two slots of a family: `{country1}`. `country:in` includes the
preposition ('in Germany', 'in der Schweiz', 'au Japon'). Each slot stands
where its text needs no inflection. The first letter of a sentence is
capitalised later.
"""

import dataclasses
import re

# Text before a slot, the slot ('' after the last one) and its style.
Part = tuple[str, str, str]

_SLOT = re.compile(r'\{(\w+)(?::(\w+))?\}')


@dataclasses.dataclass(frozen=True)
class Frame:
  """Sentence with slots, in all languages.

  Attributes:
    slots: Names of the slots, in the order of the English text.
    parts: Text of each language, cut at its slots.
  """

  slots: tuple[str, ...]
  parts: dict[str, tuple[Part, ...]]


def _frame(**texts: str) -> Frame:
  parts = {language: _cut(text) for language, text in texts.items()}
  slots = dict.fromkeys(slot for _, slot, _ in parts['en'] if slot)
  return Frame(tuple(slots), parts)


def _cut(text: str) -> tuple[Part, ...]:
  parts = []
  start = 0
  for match in _SLOT.finditer(text):
    parts.append((text[start : match.start()], match[1], match[2] or ''))
    start = match.end()
  return (*parts, (text[start:], '', ''))


FRAMES: tuple[Frame, ...] = (
  _frame(
    de='Die Sitzung {country:in} beginnt am {date} um {time} Uhr.',
    en='The meeting {country:in} begins on {date} at {time}.',
    es='La reunión {country:in} comienza el {date} a las {time}.',
    fr='La réunion {country:in} commence le {date} à {time}.',
    nl='De vergadering {country:in} begint op {date} om {time} uur.',
  ),
  _frame(
    de='{person} wurde am {date} {country:in} geboren.',
    en='{person} was born {country:in} on {date}.',
    es='{person} nació {country:in} el {date}.',
    fr='{person} est née {country:in} le {date}.',
    nl='{person} werd op {date} {country:in} geboren.',
  ),
  _frame(
    de='{person} lebt seit {month} {country:in} und spricht {language}.',
    en='{person} has lived {country:in} since {month} and speaks {language}.',
    es='{person} vive {country:in} desde {month} y habla {language}.',
    fr='{person} vit {country:in} depuis {month} et parle {language}.',
    nl='{person} woont sinds {month} {country:in} en spreekt {language}.',
  ),
  _frame(
    de='Das Buch auf {language} kostet {price} und erscheint am {date}.',
    en='The book in {language} costs {price} and comes out on {date}.',
    es='El libro en {language} cuesta {price} y sale el {date}.',
    fr='Le livre en {language} coûte {price} et paraît le {date}.',
    nl='Het boek in het {language} kost {price} en verschijnt op {date}.',
  ),
  _frame(
    de='Ausgangssprache: {language1}; Zielsprache: {language2}; '
    '{count} Wörter.',
    en='Source language: {language1}; target language: {language2}; '
    '{count} words.',
    es='Idioma de origen: {language1}; idioma de destino: '
    '{language2}; {count} palabras.',
    fr='Langue source : {language1} ; langue cible : {language2} ; '
    '{count} mots.',
    nl='Brontaal: {language1}; doeltaal: {language2}; {count} woorden.',
  ),
  _frame(
    de='Der Zug ist {hours:ago} abgefahren; der nächste fährt um '
    '{time} Uhr von Gleis {track}.',
    en='The train left {hours:ago}; the next one leaves at {time} '
    'from platform {track}.',
    es='El tren salió {hours:ago}; el siguiente sale a las {time} '
    'de la vía {track}.',
    fr='Le train est parti {hours:ago} ; le suivant part à {time} '
    'de la voie {track}.',
    nl='De trein is {hours:ago} vertrokken; de volgende vertrekt om '
    '{time} uur van spoor {track}.',
  ),
  _frame(
    de='Die Konferenz {country:in} beginnt {days:ahead} und kostet {price}.',
    en='The conference {country:in} starts {days:ahead} and costs {price}.',
    es='La conferencia {country:in} comienza {days:ahead} y cuesta {price}.',
    fr='La conférence {country:in} commence {days:ahead} et coûte {price}.',
    nl='De conferentie {country:in} begint {days:ahead} en kost {price}.',
  ),
  _frame(
    de='Im {month} stiegen die Preise {country:in} um {percent}.',
    en='In {month}, prices {country:in} rose by {percent}.',
    es='En {month}, los precios {country:in} subieron un {percent}.',
    fr='En {month}, les prix {country:in} ont augmenté de {percent}.',
    nl='In {month} stegen de prijzen {country:in} met {percent}.',
  ),
  _frame(
    de='{country:in} sprechen {percent} der Schüler {language}.',
    en='{country:in}, {percent} of the pupils speak {language}.',
    es='{country:in}, el {percent} de los alumnos habla {language}.',
    fr='{country:in}, {percent} des élèves parlent {language}.',
    nl='{country:in} spreekt {percent} van de leerlingen {language}.',
  ),
  _frame(
    de='Am {date} besuchten {count} Menschen das Museum {country:in}.',
    en='On {date}, {count} people visited the museum {country:in}.',
    es='El {date}, {count} personas visitaron el museo {country:in}.',
    fr='Le {date}, {count} personnes ont visité le musée {country:in}.',
    nl='Op {date} bezochten {count} mensen het museum {country:in}.',
  ),
  _frame(
    de='Am {weekday} schrieb {person} die Zahl {number} in Worten: '
    '{number:words}.',
    en='On {weekday}, {person} wrote the number {number} in words: '
    '{number:words}.',
    es='El {weekday}, {person} escribió el número {number} en '
    'letras: {number:words}.',
    fr='{weekday}, {person} a écrit le nombre {number} en lettres : '
    '{number:words}.',
    nl='Op {weekday} schreef {person} het getal {number} in '
    'woorden: {number:words}.',
  ),
  _frame(
    de='Die Antwort auf Frage {few} lautet: {number:words}.',
    en='The answer to question {few} is: {number:words}.',
    es='La respuesta a la pregunta {few} es: {number:words}.',
    fr='La réponse à la question {few} est : {number:words}.',
    nl='Het antwoord op vraag {few} luidt: {number:words}.',
  ),
  _frame(
    de='Das {ordinal} Kapitel hat {few} Seiten und erschien am {date}.',
    en='The {ordinal} chapter has {few} pages and appeared on {date}.',
    es='El {ordinal} capítulo tiene {few} páginas y se publicó el {date}.',
    fr='Le {ordinal} chapitre compte {few} pages et a paru le {date}.',
    nl="Het {ordinal} hoofdstuk telt {few} pagina's en verscheen op {date}.",
  ),
  _frame(
    de='Der {ordinal} Preis von {price} geht an {person}.',
    en='The {ordinal} prize of {price} goes to {person}.',
    es='El {ordinal} premio, de {price}, es para {person}.',
    fr='Le {ordinal} prix, de {price}, revient à {person}.',
    nl='De {ordinal} prijs van {price} gaat naar {person}.',
  ),
  _frame(
    de='Die Straße {country:in} ist {length} lang; das Tempolimit '
    'beträgt {speed}.',
    en='The road {country:in} is {length} long; the speed limit is {speed}.',
    es='La carretera {country:in} mide {length}; el límite de '
    'velocidad es de {speed}.',
    fr='La route {country:in} mesure {length} ; la vitesse maximale '
    'est de {speed}.',
    nl='De weg {country:in} is {length} lang; de maximumsnelheid is {speed}.',
  ),
  _frame(
    de='Das Paket wiegt {weight}, kostet {price} und kommt {days:ahead} an.',
    en='The parcel weighs {weight}, costs {price} and arrives {days:ahead}.',
    es='El paquete pesa {weight}, cuesta {price} y llega {days:ahead}.',
    fr='Le colis pèse {weight}, coûte {price} et arrive {days:ahead}.',
    nl='Het pakket weegt {weight}, kost {price} en komt {days:ahead} aan.',
  ),
  _frame(
    de='Am {weekday} um {time} Uhr betrug die Temperatur '
    '{country:in} {temperature}.',
    en='On {weekday} at {time}, the temperature {country:in} was '
    '{temperature}.',
    es='El {weekday} a las {time}, la temperatura {country:in} era '
    'de {temperature}.',
    fr='{weekday} à {time}, la température {country:in} était de '
    '{temperature}.',
    nl='Op {weekday} om {time} uur was de temperatuur {country:in} '
    '{temperature}.',
  ),
  _frame(
    de='Nehmen Sie für {few} Personen {volume} Wasser und {weight} Mehl.',
    en='For {few} people, take {volume} of water and {weight} of flour.',
    es='Para {few} personas, tome {volume} de agua y {weight} de harina.',
    fr="Pour {few} personnes, prenez {volume} d'eau et {weight} de farine.",
    nl='Neem voor {few} personen {volume} water en {weight} bloem.',
  ),
  _frame(
    de='Der Wald {country:in} umfasst {area} und wurde {years:ago} gepflanzt.',
    en='The forest {country:in} covers {area} and was planted {years:ago}.',
    es='El bosque {country:in} ocupa {area} y se plantó {years:ago}.',
    fr='La forêt {country:in} couvre {area} et a été plantée {years:ago}.',
    nl='Het bos {country:in} beslaat {area} en werd {years:ago} aangeplant.',
  ),
  _frame(
    de='Der Download von {data} beginnt um {time} Uhr und dauert {hours}.',
    en='The download of {data} starts at {time} and takes {hours}.',
    es='La descarga de {data} comienza a las {time} y dura {hours}.',
    fr='Le téléchargement de {data} commence à {time} et dure {hours}.',
    nl='De download van {data} begint om {time} uur en duurt {hours}.',
  ),
  _frame(
    de='Am {weekday} öffnet das Büro {country:in} um {time} Uhr.',
    en='On {weekday}, the office {country:in} opens at {time}.',
    es='El {weekday}, la oficina {country:in} abre a las {time}.',
    fr='{weekday}, le bureau {country:in} ouvre à {time}.',
    nl='Op {weekday} opent het kantoor {country:in} om {time} uur.',
  ),
  _frame(
    de='Neuer Termin: {date:full}, um {time} Uhr.',
    en='New date: {date:full}, at {time}.',
    es='Nueva fecha: {date:full}, a las {time}.',
    fr='Nouvelle date : {date:full}, à {time}.',
    nl='Nieuwe datum: {date:full}, om {time} uur.',
  ),
  _frame(
    de='Termin für {person}: {date:full}, um {time} Uhr.',
    en='Appointment for {person}: {date:full}, at {time}.',
    es='Cita para {person}: {date:full}, a las {time}.',
    fr='Rendez-vous pour {person} : {date:full}, à {time}.',
    nl='Afspraak voor {person}: {date:full}, om {time} uur.',
  ),
  _frame(
    de='Rechnung, {date:medium}: {price}, zahlbar {days:ahead}.',
    en='Invoice, {date:medium}: {price}, payable {days:ahead}.',
    es='Factura, {date:medium}: {price}, pagadera {days:ahead}.',
    fr='Facture, {date:medium} : {price}, payable {days:ahead}.',
    nl='Factuur, {date:medium}: {price}, te betalen {days:ahead}.',
  ),
  _frame(
    de='Nettogewicht: {weight}; mindestens haltbar bis: {date:short}.',
    en='Net weight: {weight}; best before: {date:short}.',
    es='Peso neto: {weight}; consumir preferentemente antes del: {date:short}.',
    fr='Poids net : {weight} ; à consommer de préférence avant le : '
    '{date:short}.',
    nl='Nettogewicht: {weight}; ten minste houdbaar tot: {date:short}.',
  ),
  _frame(
    de='Das Hotel {country:in} kostet {amount} pro Nacht.',
    en='The hotel {country:in} costs {amount} per night.',
    es='El hotel {country:in} cuesta {amount} por noche.',
    fr="L'hôtel {country:in} coûte {amount} par nuit.",
    nl='Het hotel {country:in} kost {amount} per nacht.',
  ),
  _frame(
    de='Währung: {currency}; Land: {country}; Sprache: {language}; '
    'Artikel: {few}.',
    en='Currency: {currency}; country: {country}; language: '
    '{language}; items: {few}.',
    es='Moneda: {currency}; país: {country}; idioma: {language}; '
    'artículos: {few}.',
    fr='Devise : {currency} ; pays : {country} ; langue : '
    '{language} ; articles : {few}.',
    nl='Valuta: {currency}; land: {country}; taal: {language}; '
    'artikelen: {few}.',
  ),
  _frame(
    de='Teilnehmende Länder am {date}: {country1}, {country2}, {country3}.',
    en='Participating countries on {date}: {country1}, {country2}, {country3}.',
    es='Países participantes el {date}: {country1}, {country2}, {country3}.',
    fr='Pays participants le {date} : {country1}, {country2}, {country3}.',
    nl='Deelnemende landen op {date}: {country1}, {country2}, {country3}.',
  ),
  _frame(
    de='{country:in} spricht {person} {language1}, aber kein {language2}.',
    en='{country:in}, {person} speaks {language1}, but no {language2}.',
    es='{country:in}, {person} habla {language1}, pero no {language2}.',
    fr='{country:in}, {person} parle {language1}, mais pas {language2}.',
    nl='{country:in} spreekt {person} {language1}, maar geen {language2}.',
  ),
  _frame(
    de='Die Brücke {country:in} wurde im {month} eröffnet und '
    'kostete {amount}.',
    en='The bridge {country:in} was opened in {month} and cost {amount}.',
    es='El puente {country:in} se inauguró en {month} y costó {amount}.',
    fr='Le pont {country:in} a été inauguré en {month} et a coûté {amount}.',
    nl='De brug {country:in} werd in {month} geopend en kostte {amount}.',
  ),
  _frame(
    de='Die {few} Karten für {weekday} um {time} Uhr kosten {price}.',
    en='The {few} tickets for {weekday} at {time} cost {price}.',
    es='Las {few} entradas para el {weekday} a las {time} cuestan {price}.',
    fr='Les {few} billets pour {weekday} à {time} coûtent {price}.',
    nl='De {few} kaartjes voor {weekday} om {time} uur kosten {price}.',
  ),
  _frame(
    de='Mit einem Rabatt von {percent} kostet die Karte {price} bis '
    'zum {date}.',
    en='With a discount of {percent}, the ticket costs {price} until {date}.',
    es='Con un descuento del {percent}, la entrada cuesta {price} '
    'hasta el {date}.',
    fr='Avec une réduction de {percent}, le billet coûte {price} '
    "jusqu'au {date}.",
    nl='Met een korting van {percent} kost het kaartje {price} tot {date}.',
  ),
  _frame(
    de='Der Flug dauert {hours} und landet um {time} Uhr {country:in}.',
    en='The flight takes {hours} and lands {country:in} at {time}.',
    es='El vuelo dura {hours} y aterriza {country:in} a las {time}.',
    fr='Le vol dure {hours} et atterrit {country:in} à {time}.',
    nl='De vlucht duurt {hours} en landt om {time} uur {country:in}.',
  ),
  _frame(
    de='Laut der Umfrage vom {date} sind {percent} der Einwohner '
    '{country:in} zufrieden.',
    en='According to the survey of {date}, {percent} of the '
    'residents {country:in} are satisfied.',
    es='Según la encuesta del {date}, el {percent} de los '
    'habitantes {country:in} está satisfecho.',
    fr='Selon le sondage du {date}, {percent} des habitants '
    '{country:in} sont satisfaits.',
    nl='Volgens de enquête van {date} is {percent} van de inwoners '
    '{country:in} tevreden.',
  ),
  _frame(
    de='Der Gipfel {country:in} ist {height} hoch; der Aufstieg '
    'dauert {hours}.',
    en='The summit {country:in} is {height} high; the climb takes {hours}.',
    es='La cumbre {country:in} tiene {height} de altura; la subida '
    'dura {hours}.',
    fr="Le sommet {country:in} culmine à {height} ; l'ascension dure {hours}.",
    nl='De top {country:in} is {height} hoog; de klim duurt {hours}.',
  ),
  _frame(
    de='Der Film auf {language} beginnt {hours1:ahead} und dauert {hours2}.',
    en='The film in {language} starts {hours1:ahead} and lasts {hours2}.',
    es='La película en {language} empieza {hours1:ahead} y dura {hours2}.',
    fr='Le film en {language} commence {hours1:ahead} et dure {hours2}.',
    nl='De film in het {language} begint {hours1:ahead} en duurt {hours2}.',
  ),
  _frame(
    de='{person} ist {days:ago} angekommen und reist am {date} wieder ab.',
    en='{person} arrived {days:ago} and leaves again on {date}.',
    es='{person} llegó {days:ago} y se va de nuevo el {date}.',
    fr='{person} est arrivée {days:ago} et repart le {date}.',
    nl='{person} is {days:ago} aangekomen en vertrekt weer op {date}.',
  ),
  _frame(
    de='Die Stadt {country:in} hat {count} Einwohner und {few} Schulen.',
    en='The city {country:in} has {count} inhabitants and {few} schools.',
    es='La ciudad {country:in} tiene {count} habitantes y {few} escuelas.',
    fr='La ville {country:in} compte {count} habitants et {few} écoles.',
    nl='De stad {country:in} telt {count} inwoners en {few} scholen.',
  ),
  _frame(
    de='Der Kurs auf {language} mit {few} Lektionen kostet {amount}.',
    en='The course in {language} with {few} lessons costs {amount}.',
    es='El curso en {language} con {few} lecciones cuesta {amount}.',
    fr='Le cours en {language} avec {few} leçons coûte {amount}.',
    nl='De cursus in het {language} met {few} lessen kost {amount}.',
  ),
  _frame(
    de='Bitte rufen Sie {person} am {weekday} nach {time} Uhr wegen '
    'Bestellung {few} an.',
    en='Please call {person} on {weekday} after {time} about order {few}.',
    es='Por favor, llame a {person} el {weekday} después de las '
    '{time} por el pedido {few}.',
    fr='Veuillez appeler {person} {weekday} après {time} au sujet '
    'de la commande {few}.',
    nl='Bel {person} alstublieft op {weekday} na {time} uur over '
    'bestelling {few}.',
  ),
  _frame(
    de='Am {weekday} um {time} Uhr wird der Wind {country:in} '
    '{speed} erreichen.',
    en='On {weekday} at {time}, the wind {country:in} will reach {speed}.',
    es='El {weekday} a las {time}, el viento {country:in} alcanzará {speed}.',
    fr='{weekday} à {time}, le vent {country:in} atteindra {speed}.',
    nl='Op {weekday} om {time} uur zal de wind {country:in} {speed} bereiken.',
  ),
)
